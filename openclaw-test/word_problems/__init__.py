"""Small word problems: how people ask them, how replies look, and what people say to a reply."""
