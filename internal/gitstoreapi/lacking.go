package gitstoreapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// LackingPath is the path below a repository's URL at which the pods of tasks ask for objects
// that are missing or damaged, and bring them.
const LackingPath = "clew/lacking"

// Lacking are objects of a repository that are missing or damaged.
type Lacking struct {
	Objects []string `json:"objects,omitempty"`
}

// maxLackingBytes bounds the answers.
const maxLackingBytes = 1 << 20

// RepositoryClient makes requests to a repository, as a task's pod, that are not part of git's
// protocol.
type RepositoryClient struct {
	// URL of the repository.
	URL string
	// CAFile and Token are as in Client; the token itself.
	CAFile, Token string
}

// Lacking returns the objects that checkpoints of the task, or of the task it was started from,
// need, and that are missing or damaged. A gitstore of an earlier version refuses: NotFound.
func (c RepositoryClient) Lacking(ctx context.Context) (Lacking, error) {
	var lacking Lacking
	err := c.do(ctx, http.MethodGet, nil, &lacking)
	return lacking, err
}

// Heal brings a pack of lacking objects, and returns those that are lacking then.
func (c RepositoryClient) Heal(ctx context.Context, pack io.Reader) (Lacking, error) {
	var lacking Lacking
	err := c.do(ctx, http.MethodPost, pack, &lacking)
	return lacking, err
}

func (c RepositoryClient) do(ctx context.Context, method string, body io.Reader, answer any) error {
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+"/"+LackingPath, body)
	if err != nil {
		return err
	}
	request.SetBasicAuth("clew", c.Token)
	transport, err := Client{CAFile: c.CAFile}.transport()
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("the gitstore cannot be reached: %w", err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxLackingBytes))
	if err != nil {
		return fmt.Errorf("the connection to the gitstore broke: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		if refused, ok := Parse(string(content)); ok {
			return refused
		}
		return fmt.Errorf("the gitstore answered %s", response.Status)
	}
	return json.Unmarshal(content, answer)
}
