"""What somebody may want to be told: findings of all rooms as events with a key, a severity and an end."""
