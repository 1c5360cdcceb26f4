package gitstore

import (
	"bytes"
	"context"
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

// chunked is the length of a push that does not declare one.
const chunked = -1

// pushByHand sends the beginning of a push that declares the given length, and returns its
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

// trickle calls send every few milliseconds, as a slow client does, until ctx ends or send
// fails.
func trickle(ctx context.Context, send func() error) error {
	pace := time.NewTicker(2 * time.Millisecond)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
			if err := send(); err != nil {
				return err
			}
		}
	}
}

// goOn keeps sending a little until the connection ends.
func goOn(connection net.Conn) {
	_ = trickle(context.Background(), func() error {
		_, err := connection.Write([]byte("more"))
		return err
	})
}

// withoutRoom makes the server's volume full after one push of the task fix.
func (s *testServer) withoutRoom() *testServer {
	task := s.client(taskToken("fix", 1))
	task.commit("a", "x")
	task.push("HEAD:" + codeRef("fix", 1))
	s.handler.free = func() (int64, error) { return 0, nil }
	return s
}

// Otherwise a client that keeps sending could hold its connection, and the memory for it,
// as long as it likes.
func TestARefusedPushIsDrainedForALimitedTime(t *testing.T) {
	g := gomega.NewWithT(t)
	server := newTestServer(t, Limits{}).withoutRoom()
	server.handler.drainTime, server.handler.graceTime = 100*time.Millisecond, time.Second
	connection := server.pushByHand(1 << 30)
	go goOn(connection)
	answer, err := io.ReadAll(connection)
	g.Expect(string(answer)).To(gomega.ContainSubstring("clew: VolumeFull"))
	g.Expect(errors.Is(err, os.ErrDeadlineExceeded)).To(gomega.BeFalse(), "the connection was not closed")
}

func TestAPushThatIsDrainedHoldsNoSlot(t *testing.T) {
	stall := func(connection net.Conn) {
		_, _ = connection.Write(bytes.Repeat([]byte("more"), 100)) // the connection may have ended
	}
	for name, c := range map[string]struct {
		limits Limits
		more   func(net.Conn)
	}{
		"refused by git": {more: goOn},
		"refused by git, while the client stalls":   {limits: Limits{Patience: time.Hour}, more: stall},
		"refused because it is larger than allowed": {limits: Limits{PushBytes: 200}, more: goOn},
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

// A client that does not read while it sends gets the response once it has finished.
func TestAClientThatKeepsSendingHasTimeToFinish(t *testing.T) {
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
	// The client sends for ten times as long as the server waits before it answers.
	second, cancel := context.WithTimeout(t.Context(), 10*server.handler.drainTime)
	defer cancel()
	g.Expect(trickle(second, func() error {
		_, err := io.WriteString(connection, "4\r\nmore\r\n")
		return err
	})).To(gomega.Succeed(), "the client keeps sending")
	_, err := io.WriteString(connection, "0\r\n\r\n")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(<-read).NotTo(gomega.HaveOccurred(), "the connection was reset")
	g.Expect(answer.String()).To(gomega.ContainSubstring("clew: VolumeFull"))
}

// A proxy may send the requests of many clients on one connection.
func TestTheRestOfARefusedPushIsNotTakenForARequest(t *testing.T) {
	g := gomega.NewWithT(t)
	const patience = 200 * time.Millisecond
	server := newTestServer(t, Limits{}).withoutRoom()
	server.handler.limits.Patience = patience
	connection := server.pushByHand(10_000)
	// Time is the subject: by now every part of the server has stopped waiting for the rest.
	time.Sleep(10 * patience)
	_, _ = io.WriteString(connection, "GET /team/"+repository+".git/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\n\r\n") // the connection may be closed
	answer, err := io.ReadAll(connection)
	g.Expect(strings.Count(string(answer), "HTTP/1.1 ")).To(gomega.Equal(1), "%s", answer)
	g.Expect(errors.Is(err, os.ErrDeadlineExceeded)).To(gomega.BeFalse(), "the connection is kept, after %s", answer)
}
