"""Tools around the agent: doctor, support bundle, replay of a bundle, demo."""
