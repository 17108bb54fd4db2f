"""The tellers: Prometheus, files, mail, chat."""
