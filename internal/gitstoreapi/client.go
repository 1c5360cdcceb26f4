package gitstoreapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrUnreachable says that there is no connection to the gitstore, and nothing about what was
// asked of it.
var ErrUnreachable = errors.New("the gitstore cannot be reached")

// Deletion is what one deletion request removed. A repeated request removes nothing more.
type Deletion struct {
	// Refs is the number of deleted refs, Repositories that of the repositories from
	// which objects were removed.
	Refs         int `json:"refs"`
	Repositories int `json:"repositories"`
	// Bytes is how much disk space the repositories freed.
	Bytes int64 `json:"bytes"`
}

// Client makes requests to a gitstore, as Clew's server or manager, that are not part of git's
// protocol.
type Client struct {
	// BaseURL of the gitstore.
	BaseURL string
	// CAFile contains the PEM certificates of the authorities that may sign the
	// gitstore's; the system's if empty. TokenFile contains the program's own token. Both are
	// read for each request, since they change.
	CAFile, TokenFile string
}

const (
	// deletionTimeout bounds one deletion, which may have to rewrite a large repository.
	deletionTimeout = 15 * time.Minute
	// adoptionTimeout bounds one adoption, which writes a ref for each checkpoint.
	adoptionTimeout = time.Minute
	// maxDeletionBytes and maxDiffBytes bound the answers.
	maxDeletionBytes, maxDiffBytes = 64 << 10, 32 << 20
)

// DeleteTask deletes what a task has stored in a namespace, and what the former tasks have whose
// history it has adopted: the gitstore may have been restored from a copy that is older than the
// adoption. There may be any number of them. name selects the task's branches. The request may be
// repeated. A refusal of the gitstore is returned as a *Refusal.
func (c Client) DeleteTask(ctx context.Context, namespace, uid, name string, formers []string) (Deletion, error) {
	var deletion Deletion
	ctx, cancel := context.WithTimeout(ctx, deletionTimeout)
	defer cancel()
	for page := range slices.Chunk(formers, MaxFormers) {
		if err := c.tellFormers(ctx, namespace, uid, page); err != nil {
			return deletion, err
		}
	}
	err := c.do(ctx, http.MethodDelete, taskPath(namespace, uid), url.Values{"name": {name}}, maxDeletionBytes, &deletion)
	return deletion, err
}

// Adoption is what one request to adopt the checkpoints of a former task did.
type Adoption struct {
	// Refs is the number of refs that the task has for them.
	Refs int `json:"refs"`
	// Unknown is set if the gitstore has never heard of the former task, as if it was restored
	// from a copy that is older than it.
	Unknown bool `json:"unknown,omitempty"`
}

// AdoptTask gives the checkpoints of a former task to another one of its namespace, under the
// same numbers. The former one can push no more. The request may be repeated.
func (c Client) AdoptTask(ctx context.Context, a TaskAdoption) (Adoption, error) {
	var adoption Adoption
	ctx, cancel := context.WithTimeout(ctx, adoptionTimeout)
	defer cancel()
	query := url.Values{"former": {a.Former}}
	if a.NamespaceUID != "" {
		query.Set("namespaceUID", a.NamespaceUID)
	}
	err := c.do(ctx, http.MethodPost, taskPath(a.Namespace, a.UID)+"/adopt", query, maxDeletionBytes, &adoption)
	return adoption, err
}

// Diff returns a page of the difference between two points of a task. A refusal of the
// gitstore is returned as a *Refusal: NotFound if it does not have one of the points, Moved if
// a point is another commit than on the page before, Damaged if it cannot read them.
func (c Client) Diff(ctx context.Context, namespace, uid string, q DiffQuery) (Diff, error) {
	var diff Diff
	err := c.do(ctx, http.MethodGet, taskPath(namespace, uid)+"/diff", q.values(), maxDiffBytes, &diff)
	return diff, err
}

// values returns the query as the parameters of a URL.
func (q DiffQuery) values() url.Values {
	v := url.Values{"path": q.Paths}
	for name, value := range map[string]string{
		"from": q.From, "to": q.To, "format": string(q.Format), "fromCommit": q.FromCommit, "toCommit": q.ToCommit, "listing": string(q.Listing), "base": q.Base,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.Ignored {
		v.Set("ignored", "true")
	}
	if q.Restored {
		v.Set("restored", "true")
	}
	for name, number := range map[string]int{"after": q.After, "limit": q.Limit} {
		if number != 0 {
			v.Set(name, strconv.Itoa(number))
		}
	}
	return v
}

func taskPath(namespace, uid string) string {
	return "/" + url.PathEscape(namespace) + "/tasks/" + url.PathEscape(uid)
}

// do makes a request without a body and decodes its answer of at most limit bytes.
func (c Client) do(ctx context.Context, method, path string, query url.Values, limit int64, answer any) error {
	return c.send(ctx, method, path, query, nil, limit, answer)
}

// send makes a request and decodes its answer of at most limit bytes.
func (c Client) send(ctx context.Context, method, path string, query url.Values, content io.Reader, limit int64, answer any) error {
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.BaseURL, "/")+path+"?"+query.Encode(), content)
	if err != nil {
		return err
	}
	token, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return fmt.Errorf("read the token for the gitstore: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	transport, err := c.transport()
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("the gitstore has not answered in time: %w", err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return fmt.Errorf("the connection to the gitstore broke: %w", err)
	}
	if int64(len(body)) > limit {
		return fmt.Errorf("the gitstore's response has more than %d bytes", limit)
	}
	if response.StatusCode != http.StatusOK {
		if refused, ok := Parse(string(body)); ok {
			return refused
		}
		return fmt.Errorf("the gitstore answered %s", response.Status)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("the gitstore's response cannot be read: %w", err)
	}
	return nil
}

// transport returns a transport that trusts the certificates in CAFile.
func (c Client) transport() (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		bundle, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the gitstore's CA certificates: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("the file %s contains no PEM certificate", c.CAFile)
		}
	}
	return &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config}, nil
}
