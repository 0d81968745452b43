"""Model providers: a small interface, and an implementation for each kind of provider."""
