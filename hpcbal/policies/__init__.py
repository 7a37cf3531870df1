"""Pure decisions: frozen values in, frozen plans out."""
