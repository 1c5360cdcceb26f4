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

// Deletion is what one deletion request removed. A repeated request removes nothing more.
type Deletion struct {
	// Refs is the number of deleted refs, Repositories that of the repositories from
	// which objects were removed.
	Refs         int `json:"refs"`
	Repositories int `json:"repositories"`
	// Bytes is how much disk space the repositories freed.
	Bytes int64 `json:"bytes"`
}

// Client makes requests to a gitstore, as Clew's server, that are not part of git's
// protocol.
type Client struct {
	// BaseURL of the gitstore.
	BaseURL string
	// CAFile contains the PEM certificates of the authorities that may sign the
	// gitstore's; the system's if empty. TokenFile contains the server's token. Both are
	// read for each request, since they change.
	CAFile, TokenFile string
}

// clientTimeout bounds one deletion, which may have to rewrite a large repository.
const clientTimeout = 15 * time.Minute

// DeleteTask deletes what a task has stored in a namespace. name selects its branches. The
// request may be repeated. A refusal of the gitstore is returned as a *Refusal.
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
		return deletion, fmt.Errorf("read the token for the gitstore: %w", err)
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
		return deletion, fmt.Errorf("the connection to the gitstore broke: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		if refused, ok := Parse(string(body)); ok {
			return deletion, refused
		}
		return deletion, fmt.Errorf("the gitstore answered %s", response.Status)
	}
	if err := json.Unmarshal(body, &deletion); err != nil {
		return deletion, fmt.Errorf("the gitstore's response cannot be read: %w", err)
	}
	return deletion, nil
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
