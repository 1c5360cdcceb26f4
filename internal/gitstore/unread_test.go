package gitstore

import (
	"bytes"
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
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// chunked is the length of a push that does not say it.
const chunked = -1

// pushByHand sends the beginning of a push that is said to be so long, and returns its
// connection.
func (s *testServer) pushByHand(length int) net.Conn {
	s.t.Helper()
	connection, err := tls.Dial("tcp", strings.TrimPrefix(s.URL, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { connection.Close() })
	commands := strings.Repeat("0", 40) + " " + strings.Repeat("1", 40) + " " + codeRef("fix", 2) + "\x00report-status side-band-64k"
	body := string(packet([]byte(commands))) + "0000PACK\x00\x00\x00\x02\x00\x00\x00\x01"
	size := fmt.Sprint("Content-Length: ", length)
	if length == chunked {
		size, body = "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n", len(body), body)
	}
	_, err = fmt.Fprintf(connection, "POST /team/%s.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/x-git-receive-pack-request\r\n%s\r\n\r\n%s", repository, taskToken("fix", 1), size, body)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := connection.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		s.t.Fatal(err)
	}
	return connection
}

// goOn sends a little again and again until the connection ends.
func goOn(connection net.Conn) {
	for {
		if _, err := connection.Write([]byte("more")); err != nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *testServer) withoutRoom() *testServer {
	task := s.client(taskToken("fix", 1))
	task.commit("a", "x")
	task.push("HEAD:" + codeRef("fix", 1))
	s.handler.free = func() (int64, error) { return 0, nil }
	return s
}

// A client that goes on sending could else keep its connection, and what is kept for it,
// for as long as it likes.
func TestAPushIsReadForNothingForSoLongOnly(t *testing.T) {
	g := gomega.NewWithT(t)
	server := newTestServer(t, Limits{}).withoutRoom()
	server.handler.drainTime, server.handler.graceTime = 100*time.Millisecond, time.Second
	connection := server.pushByHand(1 << 30)
	go goOn(connection)
	answer, err := io.ReadAll(connection)
	g.Expect(string(answer)).To(gomega.ContainSubstring("clew: VolumeFull"))
	g.Expect(errors.Is(err, os.ErrDeadlineExceeded)).To(gomega.BeFalse(), "the connection goes on")
}

func TestAPushThatIsReadForNothingKeepsNoPlace(t *testing.T) {
	standStill := func(connection net.Conn) {
		_, _ = connection.Write(bytes.Repeat([]byte("more"), 100)) // it may have ended
	}
	for name, c := range map[string]struct {
		limits Limits
		more   func(net.Conn)
	}{
		"since git refuses it":                                {more: goOn},
		"since git refuses it, while the client stands still": {limits: Limits{Patience: time.Hour}, more: standStill},
		"since there is too much of it":                       {limits: Limits{PushBytes: 200}, more: goOn},
	} {
		t.Run(name, func(t *testing.T) {
			server := newTestServer(t, c.limits)
			server.handler.drainTime = time.Hour
			go c.more(server.pushByHand(1 << 30))
			refused := server.handler.metrics.pushes.WithLabelValues("refused")
			gomega.NewWithT(t).Eventually(func() float64 { return testutil.ToFloat64(refused) }).WithTimeout(time.Minute).
				Should(gomega.BeEquivalentTo(1))
			server.inFlight(0)
		})
	}
}

// A client that does not read while it sends sees only then what is said of its push.
func TestAClientThatGoesOnSendingHasTimeToEnd(t *testing.T) {
	g := gomega.NewWithT(t)
	server := newTestServer(t, Limits{}).withoutRoom()
	server.handler.drainTime, server.handler.graceTime = 100*time.Millisecond, time.Minute
	connection := server.pushByHand(chunked)
	var answer strings.Builder
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(&answer, connection)
		read <- err
	}()
	for began := time.Now(); time.Since(began) < time.Second; time.Sleep(time.Millisecond) {
		_, err := io.WriteString(connection, "4\r\nmore\r\n")
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	_, err := io.WriteString(connection, "0\r\n\r\n")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(<-read).NotTo(gomega.HaveOccurred(), "the connection broke off")
	g.Expect(answer.String()).To(gomega.ContainSubstring("clew: VolumeFull"))
}

// A proxy in between may send the requests of many on one connection.
func TestWhatIsLeftOfARefusedPushIsNoRequest(t *testing.T) {
	g := gomega.NewWithT(t)
	const patience = 200 * time.Millisecond
	server := newTestServer(t, Limits{}).withoutRoom()
	server.handler.limits.Patience = patience
	connection := server.pushByHand(10_000)
	time.Sleep(10 * patience)                                                                                                       // each part of the server has given up waiting for the rest
	_, _ = io.WriteString(connection, "GET /team/"+repository+".git/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\n\r\n") // it may be closed
	answer, err := io.ReadAll(connection)
	g.Expect(strings.Count(string(answer), "HTTP/1.1 ")).To(gomega.Equal(1), "%s", answer)
	g.Expect(errors.Is(err, os.ErrDeadlineExceeded)).To(gomega.BeFalse(), "the connection is kept, after %s", answer)
}
