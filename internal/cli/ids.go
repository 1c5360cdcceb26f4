package cli

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"
)

// randomID generates the id of a one-shot operation: cli- and eight letters and digits.
func randomID() (string, error) {
	var random [5]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", fmt.Errorf("generate an id: %w", err)
	}
	return "cli-" + strings.ToLower(base32.StdEncoding.EncodeToString(random[:])), nil
}
