"""The way from a plan file to a Plan: reading YAML with its lines, merging, setting, messages, schema."""
