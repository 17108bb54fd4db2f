"""What is recorded of each run (packages, environment, arguments, code, nodes), and what differs between two of them."""
