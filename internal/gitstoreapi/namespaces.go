package gitstoreapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// NamespacesPath is the path at which Clew's server tells which namespaces share what they have
// stored.
const NamespacesPath = "/namespaces"

// Namespace is a namespace that the history knows; it may be gone.
type Namespace struct {
	// Name and UID are those of the namespace; the UID is "unknown" if it was gone before UIDs
	// were recorded.
	Name string `json:"name"`
	UID  string `json:"uid"`
	// Key is the key of its histories. Namespaces with one key share what they have stored; the
	// key of the first one of a name is the name.
	Key string `json:"key"`
	// Gone is set if it does not exist any more.
	Gone bool `json:"gone,omitempty"`
}

// Namespaces are all namespaces that the history knows, of each name the earliest first.
type Namespaces struct {
	Namespaces []Namespace `json:"namespaces"`
}

// Unclaimed are names of which the gitstore has a folder, and was told no first namespace.
type Unclaimed struct {
	Names []string `json:"names"`
}

// MaxNamespacesBytes bounds what is told, and namespacesTime the time that it may take.
const (
	MaxNamespacesBytes = 16 << 20
	namespacesTime     = 30 * time.Second
)

// TellNamespaces tells the gitstore which namespaces share what they have stored, and returns the
// names of folders whose first namespace it does not know. The request may be repeated.
func (c Client) TellNamespaces(ctx context.Context, namespaces []Namespace) ([]string, error) {
	content, err := json.Marshal(Namespaces{Namespaces: namespaces})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, namespacesTime)
	defer cancel()
	var unclaimed Unclaimed
	err = c.send(ctx, http.MethodPut, NamespacesPath, nil, bytes.NewReader(content), maxDiffBytes, &unclaimed)
	return unclaimed.Names, err
}
