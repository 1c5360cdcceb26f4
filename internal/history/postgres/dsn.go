package postgres

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// DSNEnv is the environment variable that holds the DSN of the history
// database, unless a file does.
const DSNEnv = "CLEW_DSN"

// DSN reads the DSN from the file that --dsn-file names, or from the environment.
func DSN(file string) (string, error) {
	if file == "" {
		if dsn := os.Getenv(DSNEnv); dsn != "" {
			return dsn, nil
		}
		return "", errors.New("--dsn-file, or the environment variable " + DSNEnv + ", must name the history database")
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--dsn-file: %w", err)
	}
	dsn := strings.TrimSpace(string(content))
	if dsn == "" {
		return "", fmt.Errorf("--dsn-file: %s is empty; it must hold the DSN of the history database", file)
	}
	return dsn, nil
}
