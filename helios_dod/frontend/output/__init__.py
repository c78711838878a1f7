"""What the model says: incremental parsers of content, reasoning and tool calls."""
