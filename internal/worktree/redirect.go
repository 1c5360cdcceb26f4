package worktree

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/gitpath"
)

// maxRedirects is the number of consecutive redirects that are followed.
const maxRedirects = 3

// follow sets c.url to the address that the origin redirects to and reports whether
// there was a redirect. The credentials are for the configured host: a redirect to
// another host, or from https to http, is an error that names the address. Git
// itself would follow it and send the Authorization header along.
func (c *cloning) follow() (bool, error) {
	u, err := url.Parse(c.url)
	if err != nil || IsSSH(c.url) {
		return false, nil //nolint:nilerr // git has already reported what is wrong with the address
	}
	const service = "/info/refs?service=git-upload-pack"
	location, err := c.location(c.url + service)
	if err != nil || location == nil {
		return false, nil //nolint:nilerr // git's own error is the better one
	}
	target, isRepository := strings.CutSuffix(location.String(), service)
	moved := fail(InvalidURL, nil, "the repository %s has moved to %s: set the URL to that address; credentials are sent only to the configured address", c.url, gitpath.Quote(target))
	upgraded := u.Scheme == "http" && location.Scheme == "https" && location.Port() == ""
	same := location.Scheme == u.Scheme && location.Host == u.Host || upgraded && location.Hostname() == u.Hostname()
	if !isRepository || !same {
		return false, moved
	}
	if c.url, err = cleanURL(target, false); err != nil {
		return false, moved
	}
	return true, nil
}

// location requests an address with the credentials and returns the target of the
// redirect, or nil if the response is not a redirect.
func (c *cloning) location(address string) (*url.URL, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.req.CAFile != "" {
		bundle, err := os.ReadFile(c.req.CAFile)
		if err != nil {
			return nil, err
		}
		if config.RootCAs, err = x509.SystemCertPool(); err != nil {
			return nil, err
		}
		config.RootCAs.AppendCertsFromPEM(bundle)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	client := &http.Client{
		Transport:     transport,
		Timeout:       time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(c.ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", c.authorization())
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode < 300 || response.StatusCode > 399 {
		return nil, nil
	}
	return response.Location()
}
