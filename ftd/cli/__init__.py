"""The command line: one small module a verb, loaded only when it runs. Talks HTTP to the daemon."""
