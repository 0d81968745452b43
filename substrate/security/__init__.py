"""Who may call: authentication, tokens, sessions, origins, rate limits and folder trust."""
