"""Security: authentication, tokens, sessions, origins, rate limits and folder trust."""
