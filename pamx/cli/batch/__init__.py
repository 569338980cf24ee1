"""`pamx generate --batch`: many prompts from a file, their results as JSONL."""
