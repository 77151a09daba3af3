"""Who may do what: tokens, what each one grants, where they are kept. Rooms ask a Grant; server/auth.py finds it."""
