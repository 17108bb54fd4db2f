"""The kernel's log: its lines, the events they tell, what Xids mean, and whom they concern. Pure."""
