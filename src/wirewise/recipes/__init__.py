"""Published systems as compositions of the parts: no algorithm lives here."""
