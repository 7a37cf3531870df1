"""How a rank comes into its role: one recipe per role, and the table of all of them."""
