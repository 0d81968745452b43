"""The registry: activations, their methods, schemas, resources and prompts."""
