package gitstore

const serveForTest = "CLEW_TEST_SERVE"

func serveUntilKilled(string) error { return nil }
