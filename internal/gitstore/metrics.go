package gitstore

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of one gitstore.
type metrics struct {
	requests     *prometheus.CounterVec
	refusals     *prometheus.CounterVec
	pushes       *prometheus.CounterVec
	pushSeconds  prometheus.Histogram
	fetchSeconds prometheus.Histogram
	received     prometheus.Counter
	inFlight     prometheus.Gauge
	maintenance  *prometheus.CounterVec
	deletions    *prometheus.CounterVec
	left         prometheus.Gauge
}

// newMetrics registers the gitstore's metrics with a registry.
func newMetrics(registry prometheus.Registerer, usage *usage, free func() (int64, error)) (*metrics, error) {
	buckets := []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clew_gitstore_requests_total", Help: "HTTP requests by git service, operation (advertise, exchange) and status code.",
		}, []string{"service", "operation", "code"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clew_gitstore_refusals_total", Help: "Refused requests by reason.",
		}, []string{"reason"}),
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clew_gitstore_pushes_total", Help: "Pushes that git processed, by outcome (stored, refused, failed).",
		}, []string{"outcome"}),
		pushSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "clew_gitstore_push_duration_seconds", Help: "Time from a push's first byte to its durable end.", Buckets: buckets,
		}),
		fetchSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "clew_gitstore_fetch_duration_seconds", Help: "Time to answer one fetch exchange.", Buckets: buckets,
		}),
		received: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "clew_gitstore_received_bytes_total", Help: "Bytes received in pushes.",
		}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "clew_gitstore_requests_in_flight", Help: "Requests that git is processing now.",
		}),
		maintenance: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clew_gitstore_maintenance_total", Help: "Maintenance runs of repositories by outcome (done, failed).",
		}, []string{"outcome"}),
		deletions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clew_gitstore_deletions_total", Help: "Deletions of what a task had stored, by outcome (done, failed).",
		}, []string{"outcome"}),
		left: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "clew_gitstore_gone_namespaces_bytes", Help: "Bytes on disk of what only namespaces have stored that do not exist any more, as last measured.",
		}),
	}
	for _, collector := range []prometheus.Collector{
		m.requests, m.refusals, m.pushes, m.pushSeconds, m.fetchSeconds, m.received, m.inFlight, m.maintenance, m.deletions, m.left,
		newSizeCollector(usage, free),
	} {
		if err := registry.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// sizeCollector reports sizes as last measured; collecting walks no disk. It gives totals
// only: whoever can read the metrics need not learn who works on what.
type sizeCollector struct {
	usage                      *usage
	free                       func() (int64, error)
	stored, repositories, room *prometheus.Desc
}

// newSizeCollector returns a collector of total sizes and the volume's free space.
func newSizeCollector(usage *usage, free func() (int64, error)) sizeCollector {
	return sizeCollector{
		usage: usage,
		free:  free,
		stored: prometheus.NewDesc("clew_gitstore_stored_bytes",
			"Bytes on disk of all repositories in use, as last measured, and what was received since.", nil, nil),
		repositories: prometheus.NewDesc("clew_gitstore_repositories", "Repositories in use.", nil, nil),
		room:         prometheus.NewDesc("clew_gitstore_volume_free_bytes", "Bytes that are free on the gitstore's volume.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c sizeCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- c.stored
	descriptions <- c.repositories
	descriptions <- c.room
}

// Collect implements prometheus.Collector.
func (c sizeCollector) Collect(found chan<- prometheus.Metric) {
	stored, sizes := int64(0), c.usage.known()
	for _, size := range sizes {
		stored += size.total()
	}
	found <- prometheus.MustNewConstMetric(c.stored, prometheus.GaugeValue, float64(stored))
	found <- prometheus.MustNewConstMetric(c.repositories, prometheus.GaugeValue, float64(len(sizes)))
	if free, err := c.free(); err == nil {
		found <- prometheus.MustNewConstMetric(c.room, prometheus.GaugeValue, float64(free))
	}
}

// repositoryCollector reports the size of each repository, labelled with its namespace
// and name.
type repositoryCollector struct {
	usage *usage
	bytes *prometheus.Desc
}

// NameRepositories adds the size of each repository to the metrics, by namespace and name.
// That reveals to whoever reads the metrics which namespace works on which origin.
func (h *Handler) NameRepositories(registry prometheus.Registerer) error {
	return registry.Register(repositoryCollector{usage: h.usage, bytes: prometheus.NewDesc("clew_gitstore_repository_bytes",
		"Bytes on disk of a repository, as last measured, and what was received since.", []string{"namespace", "repository"}, nil)})
}

// Describe implements prometheus.Collector.
func (c repositoryCollector) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- c.bytes }

// Collect implements prometheus.Collector.
func (c repositoryCollector) Collect(found chan<- prometheus.Metric) {
	for _, size := range c.usage.known() {
		found <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(size.total()), size.repository.Namespace, size.repository.Name)
	}
}
