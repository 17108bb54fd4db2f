"""What channels share: HTTP without surprises, and secrets from files."""
