"""Parameter servers: tables that workers pull and push, and apps that train by them."""
