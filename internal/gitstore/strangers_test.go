package gitstore

import (
	"crypto/tls"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

// No git sends more than a token and a few lines; a stranger may send without end.
func TestHeadersThatDoNotEndEndTheirConnection(t *testing.T) {
	g := gomega.NewWithT(t)
	url, _, _ := startServe(t, Options{MaintenanceInterval: time.Hour})
	connection, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{InsecureSkipVerify: true})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	defer connection.Close()
	_, err = io.WriteString(connection, "GET / HTTP/1.1\r\nHost: x\r\nVia: "+strings.Repeat("x", 128<<10))
	if err == nil {
		_ = connection.SetReadDeadline(time.Now().Add(5 * time.Second)) // less than the time for all headers
		_, err = io.Copy(io.Discard, connection)
	}
	g.Expect(errors.Is(err, os.ErrDeadlineExceeded)).To(gomega.BeFalse(), "the gitstore keeps what came, and waits for the rest")
}
