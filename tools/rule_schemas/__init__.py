"""The JSON Schemas of the files that people write, for editors: see ``graphweft_rules.json_schemas``."""
