"""Tools around the agent: doctor (what works here), support bundle (a recording of this node), replay of a bundle, demo."""
