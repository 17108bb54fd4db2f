"""Who may ask over TCP: the agent's token, sessions of who has shown it, and requests that another site has made a browser send."""
