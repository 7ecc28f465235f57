"""The shipped update rules, one YAML file each; `fwgen.list_rules()` names them."""
