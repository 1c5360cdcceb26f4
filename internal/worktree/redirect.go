package worktree

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// maxRedirects is how many redirects in a row an origin may answer with.
const maxRedirects = 3

// follow makes c.url the address to which the origin redirects, and reports
// whether it did. Credentials are for the host that was named: an address on
// another one, or without TLS where there was TLS, is an error that names it.
// Git itself would follow, and take the Authorization header along.
func (c *cloning) follow() (bool, error) {
	u, err := url.Parse(c.url)
	if err != nil || u.Scheme == "ssh" {
		return false, nil //nolint:nilerr // git has said what is wrong with the address
	}
	const service = "/info/refs?service=git-upload-pack"
	location, err := c.location(c.url + service)
	if err != nil || location == nil {
		return false, nil //nolint:nilerr // what git said is the better answer
	}
	target, isRepository := strings.CutSuffix(location.String(), service)
	moved := fail(InvalidURL, nil, "the repository %s has moved to %s: set the URL to that; credentials are not sent to an address that nobody named", c.url, quotePath(target))
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

// location asks for a URL with the credentials and returns where its answer
// redirects to; nil if it does not.
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
