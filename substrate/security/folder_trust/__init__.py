"""Trust in project folders: whether their code and settings are loaded."""
