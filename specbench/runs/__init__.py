"""The files of a run, where measuring and analysing meet: columns, records, tables and labels."""
