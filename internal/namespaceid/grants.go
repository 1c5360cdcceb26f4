package namespaceid

import (
	"fmt"
	"strings"
)

// Unknown stands for the UID of a namespace that was gone before UIDs were recorded.
const Unknown = "unknown"

// Grant gives what an earlier namespace has left to the one that has its name now.
type Grant struct {
	// Namespace is the name of both.
	Namespace string
	// UID is that of the earlier one, or Unknown.
	UID string
}

// ParseGrants parses grants that are written as namespace=uid.
func ParseGrants(texts []string) ([]Grant, error) {
	grants := make([]Grant, 0, len(texts))
	for _, text := range texts {
		name, uid, ok := strings.Cut(text, "=")
		if !ok || name == "" || uid == "" || strings.ContainsAny(text, "@/ ") {
			return nil, fmt.Errorf("%q is no grant of histories; write it as namespace=uid, with the UID of the earlier namespace", text)
		}
		grants = append(grants, Grant{Namespace: name, UID: uid})
	}
	return grants, nil
}
