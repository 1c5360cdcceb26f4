package gitstoreapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
)

const (
	// MaxFormers is how many former tasks one request may name.
	MaxFormers = 500
	// MaxFormersBytes bounds such a request.
	MaxFormersBytes = 64 << 10
)

// Formers are the UIDs of former tasks whose history a task has adopted.
type Formers struct {
	Formers []string `json:"formers"`
}

// tellFormers says which former tasks, at most MaxFormers, go with the deletion of a task.
func (c Client) tellFormers(ctx context.Context, namespace, uid string, formers []string) error {
	content, err := json.Marshal(Formers{formers})
	if err != nil {
		return err
	}
	var none struct{}
	return c.send(ctx, http.MethodPost, taskPath(namespace, uid)+"/formers", nil, bytes.NewReader(content), maxDeletionBytes, &none)
}
