package postgres

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// DSNEnv is the environment variable with the DSN of the history database, used if no
// file is given.
const DSNEnv = "CLEW_DSN"

// DSN reads the DSN from the file given by --dsn-file, or from the environment.
func DSN(file string) (string, error) {
	if file == "" {
		if dsn := os.Getenv(DSNEnv); dsn != "" {
			return dsn, nil
		}
		return "", errors.New("set --dsn-file or the environment variable " + DSNEnv + " to the DSN of the history database")
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--dsn-file: %w", err)
	}
	dsn := strings.TrimSpace(string(content))
	if dsn == "" {
		return "", fmt.Errorf("--dsn-file: %s is empty; it must contain the DSN of the history database", file)
	}
	return dsn, nil
}
