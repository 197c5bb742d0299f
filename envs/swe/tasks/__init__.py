"""Tasks of SWE: the schema (`task`), loaders of the public data sets, and the tasks shipped with envsdk."""
