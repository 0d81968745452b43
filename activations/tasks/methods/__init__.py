"""The methods of `tasks`: six for models, the others for programs and people."""
