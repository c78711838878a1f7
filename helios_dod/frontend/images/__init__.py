"""Images of requests: read, prepared and laid into prompts as a core's image syntax says."""
