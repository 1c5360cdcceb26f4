package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	"golang.org/x/net/http2"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/clew-dev/clew/internal/connections"
)

// strangers starts a server for unidentified callers, who get no further than its front.
func strangers(t *testing.T) (address string) {
	t.Helper()
	g := gomega.NewWithT(t)
	certificate, err := tls.LoadX509KeyPair(filepath.Join(served, "tls.crt"), filepath.Join(served, "tls.key"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	l, err := listen(Options{BindAddress: "127.0.0.1:0"})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	server := newTLSServer(http.NotFoundHandler(), func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil }, logr.Discard())
	go func() { _ = server.ServeTLS(l.main, "", "") }()
	t.Cleanup(func() { server.Close() })
	return l.main.Addr().String()
}

// hello opens a connection and exchanges the preface.
func hello(t *testing.T, address string) (*tls.Conn, *http2.Framer) {
	t.Helper()
	g := gomega.NewWithT(t)
	connection, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { connection.Close() })
	framer := http2.NewFramer(connection, connection)
	_, err = io.WriteString(connection, http2.ClientPreface)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(framer.WriteSettings()).To(gomega.Succeed())
	return connection, framer
}

// ended waits until the server has closed a connection.
func ended(t *testing.T, connection net.Conn) {
	t.Helper()
	_ = connection.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, connection); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the server keeps the connection open and waits for more")
	}
}

// One byte of a request's headers can stand for a whole field, which takes many bytes.
func TestEndlessHeadersCloseTheirConnection(t *testing.T) {
	g := gomega.NewWithT(t)
	connection, framer := hello(t, strangers(t))
	fields := bytes.Repeat([]byte{0xbc}, 14_000) // "via", from the table that both sides know
	g.Expect(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields})).To(gomega.Succeed())
	_ = framer.WriteContinuation(1, false, fields) // may be closed already
	ended(t, connection)
}

// Nine bytes announce a frame, and the buffer for it is allocated before it arrives.
func TestTheBufferForAnAnnouncedFrameIsSmall(t *testing.T) {
	g := gomega.NewWithT(t)
	connection, _ := hello(t, strangers(t))
	_, err := connection.Write([]byte{0x0f, 0xff, 0xff, byte(http2.FrameHeaders), 0, 0, 0, 0, 1})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	ended(t, connection)
}

// What is sent to a request that nobody reads yet has to be kept.
func TestWhatTheServerAdvertisesFitsItsMemory(t *testing.T) {
	g := gomega.NewWithT(t)
	connection, framer := hello(t, strangers(t))
	_ = connection.SetReadDeadline(time.Now().Add(20 * time.Second))
	frame, err := framer.ReadFrame()
	g.Expect(err).NotTo(gomega.HaveOccurred())
	said := map[http2.SettingID]uint32{}
	_ = frame.(*http2.SettingsFrame).ForeachSetting(func(s http2.Setting) error { said[s.ID] = s.Val; return nil })
	g.Expect(said).To(gomega.HaveKeyWithValue(http2.SettingInitialWindowSize, gomega.BeNumerically("<=", 64<<10)))
	g.Expect(said).To(gomega.HaveKeyWithValue(http2.SettingMaxFrameSize, gomega.BeNumerically("<=", 16<<10)))
	g.Expect(said).To(gomega.HaveKeyWithValue(http2.SettingMaxHeaderListSize, gomega.BeNumerically("<=", 65<<10)))
	// As many as clients assume before they have read this: a request beyond it would
	// fail if it has a body.
	g.Expect(said).To(gomega.HaveKeyWithValue(http2.SettingMaxConcurrentStreams, gomega.BeEquivalentTo(100)))
}

func TestStrangersFromOneAddressHaveAFewConnections(t *testing.T) {
	g := gomega.NewWithT(t)
	address := strangers(t)
	var silent []net.Conn
	for range 64 {
		connection, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		g.Expect(err).NotTo(gomega.HaveOccurred())
		t.Cleanup(func() { connection.Close() })
		silent = append(silent, connection)
	}
	g.Expect(greets(address, "127.0.0.1", 300*time.Millisecond)).NotTo(gomega.Succeed(), "one more than they may have was served")
	g.Expect(greets(address, "127.0.0.2", 20*time.Second)).To(gomega.Succeed(), "strangers from another address have to wait")
	silent[0].Close()
	g.Eventually(func() error { return greets(address, "127.0.0.1", 20*time.Second) }).WithTimeout(20 * time.Second).Should(gomega.Succeed())
}

// greets reports whether the server accepts a caller from an address.
func greets(server, from string, within time.Duration) error {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: within}
	connection, err := tls.DialWithDialer(dialer, "tcp", server, &tls.Config{InsecureSkipVerify: true})
	if err == nil {
		connection.Close()
	}
	return err
}

// frontProxy accepts any certificate and names the user.
type frontProxy struct{}

func (frontProxy) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	said := r.Header.Get("X-Remote-User")
	r.Header.Del("X-Remote-User")
	return nil, said != "", nil
}

func TestTheAPIServersConnectionsAreKnown(t *testing.T) {
	g := gomega.NewWithT(t)
	l, err := listen(Options{BindAddress: "127.0.0.1:0"})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	server := &http.Server{ConnContext: connections.Context, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Certificate") != "" {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
		}
		recognizeFrontProxy(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, r.Header.Get("X-Remote-User"), " ", connections.Stranger(r.Context()))
		}), frontProxy{}).ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(l.main) }()
	t.Cleanup(func() { server.Close() })
	for certificate, want := range map[string]string{"": "ann true", "yes": "ann false"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.main.Addr().String(), nil)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		request.Header.Set("X-Remote-User", "ann")
		request.Header.Set("Certificate", certificate)
		request.Close = true
		response, err := http.DefaultClient.Do(request)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		body, err := io.ReadAll(response.Body)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		response.Body.Close()
		g.Expect(string(body)).To(gomega.Equal(want))
	}
}
