package gitstoreapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
)

// AdoptionsPath is the path at which the gitstore is asked which adoptions it lacks.
const AdoptionsPath = "/adoptions"

const (
	// MaxAdoptions is how many adoptions one request may be about.
	MaxAdoptions = 1000
	// MaxAdoptionsBytes bounds such a request and its answer.
	MaxAdoptionsBytes = 1 << 20
)

// TaskAdoption says that a task continues the history of a former one.
type TaskAdoption struct {
	// Namespace is the name of the namespace of both, and UID that of the task.
	Namespace string `json:"namespace"`
	UID       string `json:"uid"`
	// Former is the UID of the former task.
	Former string `json:"former"`
	// NamespaceUID is the UID of a namespace whose histories are those of both tasks; empty if that
	// is not known. A gitstore that was restored from an older copy may have forgotten whose they are.
	NamespaceUID string `json:"namespaceUID,omitempty"`
}

// Adoptions are the adoptions that a request or its answer is about.
type Adoptions struct {
	Adoptions []TaskAdoption `json:"adoptions"`
}

// LackingAdoptions returns those of the given adoptions, at most MaxAdoptions, of which the gitstore
// knows nothing: they were never asked for, or it was restored from a copy that is older than they
// are.
func (c Client) LackingAdoptions(ctx context.Context, known []TaskAdoption) ([]TaskAdoption, error) {
	content, err := json.Marshal(Adoptions{known})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, adoptionTimeout)
	defer cancel()
	var lacking Adoptions
	err = c.send(ctx, http.MethodPost, AdoptionsPath, nil, bytes.NewReader(content), MaxAdoptionsBytes, &lacking)
	return lacking.Adoptions, err
}
