"""What there is: activations, their methods, schemas, resources and prompts."""
