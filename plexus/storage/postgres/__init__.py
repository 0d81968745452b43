"""The engine on a PostgreSQL server, through psycopg: for more than one machine."""
