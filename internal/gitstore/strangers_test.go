package gitstore

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/connections"
)

// Git sends no more than a token and a few header lines; a stranger may send without end.
func TestEndlessHeadersEndTheConnection(t *testing.T) {
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
	g.Expect(errors.Is(err, os.ErrDeadlineExceeded)).To(gomega.BeFalse(), "the gitstore buffers the headers and waits for the rest")
}

// Accounts of another namespace that may read use none of the namespace's own connections.
func TestReadersOfAnotherNamespaceUseTheirOwnConnections(t *testing.T) {
	g := gomega.NewWithT(t)
	url, _, _ := startServe(t, Options{MaintenanceInterval: time.Hour, Connections: connections.Limits{Total: 12, Strangers: 9, StrangersPerAddress: 1, PerSecond: 1000}})
	address := strings.TrimPrefix(url, "https://")
	path := "GET /team/" + repository + ".git/info/refs?service=git-"
	requests := [][2]string{{path + "receive-pack", taskToken("fix", 1)}} // makes the repository
	for n := range 6 {
		requests = append(requests, [2]string{path + "upload-pack", fmt.Sprint("account:other:", n)})
	}
	for _, request := range append(requests, [2]string{path + "receive-pack", taskToken("fix", 1)}) {
		known, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		g.Expect(err).NotTo(gomega.HaveOccurred())
		defer known.Close()
		_, err = io.WriteString(known, request[0]+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+request[1]+"\r\n\r\n")
		g.Expect(err).NotTo(gomega.HaveOccurred())
		answer, err := bufio.NewReader(known).ReadString('\n')
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(answer).To(gomega.ContainSubstring("200 OK"))
	}
	silent, err := tls.DialWithDialer(&net.Dialer{Timeout: 20 * time.Second}, "tcp", address, &tls.Config{InsecureSkipVerify: true})
	g.Expect(err).NotTo(gomega.HaveOccurred(), "the namespace's own connection is not a stranger's, so another stranger is accepted")
	silent.Close()
}

// A caller who has authenticated is no stranger.
func TestStrangersFromOneAddressHaveAFewConnections(t *testing.T) {
	g := gomega.NewWithT(t)
	url, _, _ := startServe(t, Options{MaintenanceInterval: time.Hour, Connections: connections.Limits{Total: 100, Strangers: 9, StrangersPerAddress: 1, PerSecond: 1000}})
	address := strings.TrimPrefix(url, "https://")
	push, deletion := "GET /team/"+repository+".git/info/refs?service=git-receive-pack", "DELETE /team/tasks/uid-other?name=other"
	for _, request := range [][2]string{{push, taskToken("fix", 1)}, {deletion, serverToken}, {push, taskToken("fix", 1)}, {deletion, serverToken}} {
		known, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		g.Expect(err).NotTo(gomega.HaveOccurred())
		defer known.Close()
		_, err = io.WriteString(known, request[0]+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+request[1]+"\r\n\r\n")
		g.Expect(err).NotTo(gomega.HaveOccurred())
		answer, err := bufio.NewReader(known).ReadString('\n')
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(answer).To(gomega.ContainSubstring("200 OK"))
	}
	silent, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	defer silent.Close()
	_, err = tls.DialWithDialer(&net.Dialer{Timeout: 300 * time.Millisecond}, "tcp", address, &tls.Config{InsecureSkipVerify: true})
	g.Expect(err).To(gomega.HaveOccurred(), "one more stranger than allowed is served")
}

// After its response the server still reads some of an unread request body, and would wait
// for it for ever.
func TestAConnectionWithAnUnfinishedRequestEnds(t *testing.T) {
	server := newTestServer(t, Limits{Patience: 200 * time.Millisecond})
	task := server.client(taskToken("fix", 1))
	task.commit("a", "x")
	task.push("HEAD:" + codeRef("fix", 1))
	server.handler.free = func() (int64, error) { return 0, nil }
	commands := strings.Repeat("0", 40) + " " + strings.Repeat("1", 40) + " " + codeRef("fix", 2) + "\x00report-status side-band-64k"
	for name, request := range map[string]struct{ header, body string }{
		"refused on the error band": {"Content-Type: application/x-git-receive-pack-request", string(packet([]byte(commands))) + "0000"},
		"refused before it is read": {"Content-Encoding: x", ""},
		"refused while it is read":  {"Content-Type: application/x-git-receive-pack-request", "0032want nothing of a push"},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			connection, err := tls.Dial("tcp", strings.TrimPrefix(server.URL, "https://"), &tls.Config{InsecureSkipVerify: true})
			g.Expect(err).NotTo(gomega.HaveOccurred())
			defer connection.Close()
			_, err = fmt.Fprintf(connection, "POST /team/%s.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s\r\nContent-Length: 10000\r\n\r\n%s",
				repository, taskToken("fix", 1), request.header, request.body)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(connection.SetReadDeadline(time.Now().Add(20 * time.Second))).To(gomega.Succeed())
			answer, err := io.ReadAll(connection)
			g.Expect(err).NotTo(gomega.HaveOccurred(), "the connection is still open after %q", answer)
			g.Expect(string(answer)).To(gomega.ContainSubstring("clew: "))
		})
	}
}
