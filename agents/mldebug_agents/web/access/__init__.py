"""Who may ask over TCP: the agent's token, sessions of browsers that have sent it, and requests that another site has made a browser send."""
