"""Who is speaking and what they may do: tokens, keys, and the directory of roles."""
