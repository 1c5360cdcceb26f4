package meta

type Duration struct{ Nanoseconds int64 }

type Condition struct{ Type string }
