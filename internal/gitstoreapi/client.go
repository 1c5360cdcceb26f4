package gitstoreapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Deletion is the answer to a deletion: what was removed by this request. A
// repeated one finds nothing left.
type Deletion struct {
	// Refs counts the refs, Repositories those that held some or had objects
	// left over.
	Refs         int `json:"refs"`
	Repositories int `json:"repositories"`
	// Bytes is what the repositories take less on the disk.
	Bytes int64 `json:"bytes"`
}

// Client asks a gitstore, as Clew's server, for what is no business of git.
type Client struct {
	// BaseURL of the gitstore.
	BaseURL string
	// CAFile holds the PEM certificates that sign the gitstore's; the system's
	// if empty. TokenFile holds the server's token. Both are read for each
	// request, since they change.
	CAFile, TokenFile string
}

// clientTimeout bounds one deletion, which may have to write a large
// repository anew.
const clientTimeout = 15 * time.Minute

// DeleteTask deletes what a task has stored in a namespace; its branches go by
// the name. It may be repeated. What the gitstore refuses is a
// *Refusal.
func (c Client) DeleteTask(ctx context.Context, namespace, uid, name string) (Deletion, error) {
	var deletion Deletion
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	target := strings.TrimSuffix(c.BaseURL, "/") + "/" + url.PathEscape(namespace) + "/tasks/" + url.PathEscape(uid) + "?name=" + url.QueryEscape(name)
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete, target, nil)
	if err != nil {
		return deletion, err
	}
	token, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return deletion, fmt.Errorf("the token for the gitstore: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	transport, err := c.transport()
	if err != nil {
		return deletion, err
	}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return deletion, fmt.Errorf("the gitstore cannot be reached: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return deletion, fmt.Errorf("the gitstore broke off: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		if refused, ok := Parse(string(body)); ok {
			return deletion, refused
		}
		return deletion, fmt.Errorf("the gitstore answered %s", response.Status)
	}
	if err := json.Unmarshal(body, &deletion); err != nil {
		return deletion, fmt.Errorf("the gitstore's answer cannot be read: %w", err)
	}
	return deletion, nil
}

func (c Client) transport() (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		bundle, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("the certificates that sign the gitstore's: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("the file %s holds no PEM certificate", c.CAFile)
		}
	}
	return &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config}, nil
}
