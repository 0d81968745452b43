"""The engine for a PostgreSQL server, for deployments on several machines. Uses psycopg."""
